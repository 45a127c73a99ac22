"""What is to be placed and where: clusters, services, placements, their price and rules."""
