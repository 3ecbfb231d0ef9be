"""NbAFL, noising before aggregation: noise on each client's model, and on the mean where that has too little."""
