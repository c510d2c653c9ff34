"""What can be read from a layer by a linear probe?"""
