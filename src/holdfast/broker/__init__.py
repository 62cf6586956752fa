"""The broker: takes messages in at one address, and forwards them from its queues to other services.

This room owns the broker's file, its routes and which forwarders run. It knows no protocol rule and no record: a broker
is a destination with several queues and with forwarders. Open ``broker`` first, then ``config_file``; ``routing``
decides the queue of a message.
"""
