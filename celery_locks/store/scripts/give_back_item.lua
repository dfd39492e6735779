-- give_back_item: put a user's item back in stock. May be repeated.
-- KEYS as in take_item.lua  ARGV 1 user
-- returns {item}, or {''}: the user had none

--keys stock items_by_user users_by_item saved
--include saved_replies

local earlier = saved_reply(saved)
if earlier then return earlier end
local item = redis.call('HGET', items_by_user, ARGV[1]) or ''
if item ~= '' then
  redis.call('HDEL', items_by_user, ARGV[1])
  redis.call('HDEL', users_by_item, item)
  redis.call('SADD', stock, item)
end
return save_reply(saved, {item})
