"""The training stages: feature shards and bags in, a trained and evaluated embedding out."""
