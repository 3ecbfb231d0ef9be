"""Pictures as SVG text: charts, their parts and scales, and who holds what."""
