# Cut a shard's videos into clips and give each the captions near it.
rule bags:
    input:
        plan=planned(".tsv"),
        tar="results/shards/{shard}.tar",
        index="results/shards/{shard}.parquet",
        captions="results/captions/{shard}.parquet",
        vocabulary="results/vocabulary.txt",
        settings="results/settings/bags.json",
        words="results/settings/vocabulary.json",
    output:
        "results/bags/{shard}.npz",
    log:
        "logs/bags/{shard}.log",
    benchmark:
        "results/benchmarks/bags/{shard}.tsv"
    conda:
        "../../environment.yml"
    params:
        version=2,
    shell:
        "logged {log} python -m pipeline.bags --plan {input.plan} --index {input.index}"
        " --captions {input.captions} --vocabulary {input.vocabulary}"
        " --settings {input.settings} --vocabulary-settings {input.words} --output {output}"
