"""The data stages: raw videos and captions in, feature shards and bags of captions out."""
