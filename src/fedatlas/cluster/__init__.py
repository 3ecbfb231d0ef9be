"""More than one machine: plain processes on the nodes of a Ray cluster. Ray is imported only by `nodes`, when a cluster is named."""
