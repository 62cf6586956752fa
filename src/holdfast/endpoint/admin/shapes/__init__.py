"""JSON requests and answers of the admin listener, as classes, field by field.

The listener validates requests against these classes, and the OpenAPI description is generated from them. This room
owns their fields and limits. It knows no resource. Open ``requests`` first, then ``answers``.
"""
