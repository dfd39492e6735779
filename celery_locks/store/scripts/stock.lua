-- stock: put items on sale that are neither there nor sold. May be repeated.
-- KEYS 1 root  ARGV 1 name  2... items
-- returns how many are new: asked again, its answer lost, none of those it put there

local stock, buyers, added = KEYS[1] .. 's:' .. ARGV[1], KEYS[1] .. 'i:' .. ARGV[1], 0
for i = 2, #ARGV do
  if redis.call('HEXISTS', buyers, ARGV[i]) == 0 then
    added = added + redis.call('SADD', stock, ARGV[i])
  end
end
return added
