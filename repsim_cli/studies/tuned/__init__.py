"""What does further training change in a model?"""
