"""Central differential privacy: a trusted server clips what clients send and adds noise to the sum."""
