"""Can the rest of one model go on from the first blocks of another?"""
