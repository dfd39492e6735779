-- give_back_item: put a user's item back in stock. May be repeated.
-- ARGV 1 name  2 user  3 request id (saved_replies.lua)
-- returns {item}, or {''}: the user had none

--include common
--include saved_replies

local saved = saved_reply(ARGV[3])
if saved then return saved end
local items_by_user = root .. 'g:' .. ARGV[1]
local item = redis.call('HGET', items_by_user, ARGV[2]) or ''
if item ~= '' then
  redis.call('HDEL', items_by_user, ARGV[2])
  redis.call('HDEL', root .. 'i:' .. ARGV[1], item)
  redis.call('SADD', root .. 's:' .. ARGV[1], item)
end
return save_reply(ARGV[3], {item})
