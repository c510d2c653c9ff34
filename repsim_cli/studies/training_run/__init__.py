"""How does a model change along its training?"""
