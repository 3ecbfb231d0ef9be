"""Pictures as SVG text: charts, their parts and scales, and partitions."""
