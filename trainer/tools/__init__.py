"""Commands for people: none of them is a stage, each is run by hand."""
