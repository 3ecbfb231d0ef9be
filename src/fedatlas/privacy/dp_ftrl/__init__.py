"""DP-FTRL: a trusted server adds noise to the running sum of all rounds by a binary tree, and needs no secret cohort."""
