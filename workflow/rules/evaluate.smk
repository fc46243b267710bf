# Search with the trained model by each protocol: text to video, video to text.
rule evaluate:
    input:
        test_files,
        bags=each_shard("bags"),
        tars=each_shard("encode"),
        model="results/train/model.pt",
        vocabulary="results/vocabulary.txt",
        settings="results/settings/evaluate.json",
    output:
        report(
            "results/evaluate/{protocol}.json",
            caption="../report/retrieval.rst",
            category="Model",
        ),
    log:
        "logs/evaluate/{protocol}.log",
    benchmark:
        "results/benchmarks/evaluate/{protocol}.tsv"
    conda:
        "../../environment.yml"
    params:
        version=3,
    shell:
        "logged {log} python -m trainer.evaluate --protocol {wildcards.protocol}"
        " --model {input.model} --settings {input.settings} --plan results/plan"
        " --bags results/bags --shards results/shards --vocabulary {input.vocabulary}"
        " --output {output}"
