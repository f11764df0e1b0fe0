"""Pictures that several pages share: networks as diagrams, kernels, scores, laws."""
