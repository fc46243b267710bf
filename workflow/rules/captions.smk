# Bring any form of captions into one clean table for each shard, then count them all.
rule captions:
    input:
        plan=planned(".captions"),
        settings="results/settings/captions.json",
    output:
        "results/captions/{shard}.parquet",
    log:
        "logs/captions/{shard}.log",
    benchmark:
        "results/benchmarks/captions/{shard}.tsv"
    conda:
        "../../environment.yml"
    params:
        version=2,
    shell:
        "logged {log} python -m pipeline.captions --plan {input.plan}"
        " --settings {input.settings} --output {output}"


rule captions_summary:
    input:
        each_shard("captions"),
    output:
        "results/captions/summary.json",
    log:
        "logs/captions/summary.log",
    benchmark:
        "results/benchmarks/captions_summary/captions_summary.tsv"
    conda:
        "../../environment.yml"
    params:
        version=1,
    shell:
        "logged {log} python -m pipeline.captions --summarize results/plan"
        " --captions results/captions --output {output}"
