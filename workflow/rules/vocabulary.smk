# Count words once, then keep them: new captions move no token id, so no other shard's bags change.
# `-R vocabulary` counts again.
rule vocabulary:
    input:
        given("vocabulary", "word_list"),
        summary=ancient("results/captions/summary.json"),
        settings="results/settings/vocabulary.json",
    output:
        "results/vocabulary.txt",
    log:
        "logs/vocabulary/vocabulary.log",
    benchmark:
        "results/benchmarks/vocabulary/vocabulary.tsv"
    conda:
        "../../environment.yml"
    params:
        version=1,
    shell:
        "logged {log} python -m pipeline.vocabulary --summary {input.summary}"
        " --captions results/captions --settings {input.settings} --output {output}"
