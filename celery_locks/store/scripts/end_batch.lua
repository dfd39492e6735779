-- end_batch: the batch is done and goes, or goes back in order. Only if it is still ours.
-- ARGV 1 name  2 buffer  3 user  4 token  5 '1' if it is done
-- returns 1, or 0: there is no batch of this token (any more)
--
-- Asked again, its answer lost, it finds no batch, but the lock still held: nobody else had it.

--include common
--include batches

local name = ARGV[1]
if redis.call('LINDEX', root .. 'f:' .. name, 0) ~= ARGV[4] then return is_held(name, ARGV[4]) and 1 or 0 end
if ARGV[5] == '1' then redis.call('DEL', root .. 'f:' .. name) else put_back(name) end
count_messages(ARGV[2], ARGV[3], name)
return 1
