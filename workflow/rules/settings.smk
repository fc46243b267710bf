# Freeze one section of the config, so that a changed key re-runs what depends on it and no more.
rule settings:
    output:
        "results/settings/{section}.json",
    log:
        "logs/settings/{section}.log",
    wildcard_constraints:
        section="[a-z]+",
    priority: 100
    conda:
        "../../environment.yml"
    params:
        section=section_text,
        version=1,
    shell:
        "{{ printf '%s\\n' {params.section:q} > {output}.tmp && mv {output}.tmp {output}; }}"
        " 2> {log}"
