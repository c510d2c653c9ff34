"""What is each layer like, and what does it do?"""
