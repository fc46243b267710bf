# The blacklist that a person reads: each video without features, and why.
rule rejected:
    input:
        each_shard("manifest"),
        each_shard("encode"),
    output:
        report(
            "results/rejected.csv",
            caption="../report/rejected.rst",
            category="Data",
        ),
    log:
        "logs/rejected/rejected.log",
    benchmark:
        "results/benchmarks/rejected/rejected.tsv"
    conda:
        "../../environment.yml"
    params:
        version=1,
    shell:
        "logged {log} python -m pipeline.rejected --plan results/plan"
        " --manifests results/manifest --shards results/shards --output {output}"
