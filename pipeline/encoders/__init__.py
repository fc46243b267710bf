"""Video encoders: the networks that turn windows of frames into feature vectors."""
