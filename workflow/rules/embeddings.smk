# Every clip in the trained model's space, for `python -m trainer.search`; no part of `all`.
rule embeddings:
    input:
        bags="results/bags/{shard}.npz",
        tar="results/shards/{shard}.tar",
        model="results/train/model.pt",
    output:
        vectors="results/embeddings/{shard}.npy",
        index="results/embeddings/{shard}.parquet",
    log:
        "logs/embeddings/{shard}.log",
    benchmark:
        "results/benchmarks/embeddings/{shard}.tsv"
    conda:
        "../../environment.yml"
    params:
        version=1,
    shell:
        "logged {log} python -m trainer.embeddings --model {input.model} --bags {input.bags}"
        " --tar {input.tar} --output {output.vectors} --index {output.index}"
