"""Can stored vectors be kept when the model changes?"""
