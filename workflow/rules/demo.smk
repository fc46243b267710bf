# Render the videos of the demo. There is no such rule unless the videos table lists some of them.
if demo_videos():

    rule demo:
        input:
            videos=config["plan"]["videos"],
            script=demo_script(),
        output:
            demo_videos(),
        log:
            "logs/demo/demo.log",
        benchmark:
            "results/benchmarks/demo/demo.tsv"
        localrule: True
        conda:
            "../../environment.yml"
        params:
            version=1,
        shell:
            "logged {log} python -m pipeline.demo --script {input.script:q}"
            " --videos {input.videos:q} --output results/demo"
