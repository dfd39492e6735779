"""Tools the tests share: waiting, a faulty network, a look at what is left running."""
