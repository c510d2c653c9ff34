"""What do the rows of a layer look like: distances, neighbours, couplings?"""
