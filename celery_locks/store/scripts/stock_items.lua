-- stock_items: put items in stock that are neither there nor sold. May be repeated.
-- KEYS 1 root  ARGV 1 name  2... items
-- returns the number of new items; a repeated call does not count those that it added before

local stock, buyers, added = KEYS[1] .. 's:' .. ARGV[1], KEYS[1] .. 'i:' .. ARGV[1], 0
for i = 2, #ARGV do
  if redis.call('HEXISTS', buyers, ARGV[i]) == 0 then
    added = added + redis.call('SADD', stock, ARGV[i])
  end
end
return added
