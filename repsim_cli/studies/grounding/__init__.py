"""Which measure sees differences that are known to be there?"""
