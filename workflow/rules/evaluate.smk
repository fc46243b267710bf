# Search with the trained model: text to video, video to text.
rule evaluate:
    input:
        given("evaluate", "clips"),
        bags=each_shard("bags"),
        tars=each_shard("encode"),
        model="results/train/model.pt",
        vocabulary="results/vocabulary.txt",
        settings="results/settings/evaluate.json",
    output:
        report(
            "results/evaluate/retrieval.json",
            caption="../report/retrieval.rst",
            category="Model",
        ),
    log:
        "logs/evaluate/evaluate.log",
    conda:
        "../../environment.yml"
    params:
        version=1,
    shell:
        "logged {log} python -m trainer.evaluate --model {input.model}"
        " --settings {input.settings} --plan results/plan --bags results/bags"
        " --shards results/shards --vocabulary {input.vocabulary} --output {output}"
