"""NbAFL, noising before aggregation: noise on each client's model, and on the mean if the mean has too little."""
