"""The tag at the start of each file that training, evaluation and search write: name and version.

The files themselves belong to the trainer; whoever reads one elsewhere asks for its tag first.
"""

MODEL = "bagpipe-model-1"
CHECKPOINT = "bagpipe-checkpoint-1"
RETRIEVAL = "bagpipe-retrieval-2"
SEARCH = "bagpipe-search-1"
PROBE = "bagpipe-probe-1"
