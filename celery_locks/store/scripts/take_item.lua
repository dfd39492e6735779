-- take_item: give an item to a user who has none, and record who has what. May be repeated.
-- KEYS s:<name> set  items left   g:<name> hash  user -> item   i:<name> hash  item -> user
--      p:<request id> (saved_replies.lua)
-- ARGV 1 user
-- returns {item, 1 if new, 0 if the user had it before}; or {'', number of items sold}: none is left

--keys stock items_by_user users_by_item saved
--include saved_replies

local earlier = saved_reply(saved)
if earlier then return earlier end
local item = redis.call('HGET', items_by_user, ARGV[1])
if item then return save_reply(saved, {item, 0}) end
item = redis.call('SPOP', stock)
if not item then return save_reply(saved, {'', redis.call('HLEN', items_by_user)}) end
redis.call('HSET', items_by_user, ARGV[1], item)
redis.call('HSET', users_by_item, item, ARGV[1])
return save_reply(saved, {item, 1})
