"""Write the answers of the two reference models again: ``python -m ci.compute``.

The client has the result as data: it makes the models itself, and compares what a server answers.
"""

from ci.compute import ANSWERS, answers, encoded

ANSWERS.write_text(encoded(answers()), "utf-8")
print(f"made: {ANSWERS}")
