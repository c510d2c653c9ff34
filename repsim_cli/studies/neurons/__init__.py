"""Which neurons have a counterpart in other models?"""
