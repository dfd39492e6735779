-- stock_items: put items in stock that are neither there nor sold. May be repeated.
-- KEYS s:<name>, i:<name> (take_item.lua)  ARGV items
-- returns the number of new items; a repeated call does not count those that it added before

--keys stock users_by_item

local added = 0
for _, item in ipairs(ARGV) do
  if redis.call('HEXISTS', users_by_item, item) == 0 then
    added = added + redis.call('SADD', stock, item)
  end
end
return added
