-- take_item: give an item to a user who has none, and record who has what. May be repeated.
-- ARGV 1 name  2 user  3 request id (saved_replies.lua)
--   s:<name> set  items left   g:<name> hash  user -> item   i:<name> hash  item -> user
-- returns {item, 1 if new, 0 if the user had it before}; or {'', number of items sold}: none is left

--include common
--include saved_replies

local saved = saved_reply(ARGV[3])
if saved then return saved end
local items_by_user = root .. 'g:' .. ARGV[1]
local item = redis.call('HGET', items_by_user, ARGV[2])
if item then return save_reply(ARGV[3], {item, 0}) end
item = redis.call('SPOP', root .. 's:' .. ARGV[1])
if not item then return save_reply(ARGV[3], {'', redis.call('HLEN', items_by_user)}) end
redis.call('HSET', items_by_user, ARGV[2], item)
redis.call('HSET', root .. 'i:' .. ARGV[1], item, ARGV[2])
return save_reply(ARGV[3], {item, 1})
