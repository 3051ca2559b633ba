"""Code that checks a bundle inside the sandbox. This code uses only the standard library, and the server does not
import it.
"""
