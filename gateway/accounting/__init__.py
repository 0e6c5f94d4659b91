"""What each rule saved, counted on a sample of the traffic."""
