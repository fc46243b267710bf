# Freeze one section of the config, so that a changed key re-runs what depends on it and no more.
# Relations between its keys are checked here, first of all, not by the stage hours later.
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
        package=section_package,
        version=1,
    shell:
        "printf '%s\\n' {params.section:q} > {output}.tmp;"
        " logged {log} python -m {params.package}.settings {wildcards.section} {output}.tmp;"
        " mv {output}.tmp {output}"
