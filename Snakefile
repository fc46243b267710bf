# `snakemake --cores N` starts here; everything is in workflow/.


include: "workflow/Snakefile"


# An included rule is no default target, so the wrapper has its own.
rule default:
    default_target: True
    input:
        rules.all.input,
