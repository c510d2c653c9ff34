"""Which features of sparse dictionaries do models share?"""
