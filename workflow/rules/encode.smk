# Decode a shard's videos and encode them: a WebDataset tar and its index.
# No `version` here: only encode.feature_version may encode months of work again. A weights file
# that was touched but not changed costs little, for finished videos are re-used by their recipe.
rule encode:
    input:
        given("encode", "weights"),
        manifest="results/manifest/{shard}.parquet",
        settings="results/settings/encode.json",
    output:
        tar="results/shards/{shard}.tar",
        index="results/shards/{shard}.parquet",
    log:
        "logs/encode/{shard}.log",
    benchmark:
        "results/benchmarks/encode/{shard}.tsv"
    conda:
        "../../environment.yml"
    threads: config["run"]["encode"]["threads"]
    resources:
        encode_device=config["run"]["encode"]["device"],
        encode_batch=config["run"]["encode"]["batch"],
        encode_workers=config["run"]["encode"]["workers"],
    shell:
        "logged {log} python -m pipeline.encode --manifest {input.manifest}"
        " --settings {input.settings} --output {output.tar} --index {output.index}"
        " --device {resources.encode_device} --batch {resources.encode_batch}"
        " --workers {resources.encode_workers} --threads {threads}"
