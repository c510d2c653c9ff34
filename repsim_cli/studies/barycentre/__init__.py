"""What shape do the rows of many models share?"""
