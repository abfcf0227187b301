"""What `up` and the tests start on this machine: MySQL, a receiver, nginx."""
