"""What several gateways share, in Redis or Valkey (DESIGN 12). Nothing of this room is imported without `store`.

It knows `config` and `identity`, and of `tasks` only `ports`, which says what a store does.

redis_store   the states of the store, and the loop that carries what waits
link          one connection, by redis-py
names         the names of keys, and how long they are kept
waiting       what waits to be written and to be read
"""
