-- Part of acquire: the options of a call, by name; each is a list of its keys and then its values.

local KEY_COUNTS = {
  wait = 0, ended = 1, release = 3, replace = 2, supersede = 1, once = 1, newest = 1, rate = 4, also = 2, park = 2,
  join = 1, published_by = 0, forget = 1,
}
local VALUE_COUNTS = {
  wait = 1, ended = 0, release = 1, replace = 1, supersede = 1, once = 2, newest = 1, rate = 2, also = 1, park = 9,
  join = 1, published_by = 1, forget = 1,
}
local options, next_key, next_value = {}, 12, 4 -- after the keys and values that every call has
local has_rates_only = true -- or `wait`, which a free lock does not need
while ARGV[next_value] do
  local name = ARGV[next_value]
  local option = name == 'also' and options.also or {} -- it comes once for each further lock
  for i = next_key, next_key + KEY_COUNTS[name] - 1 do option[#option + 1] = KEYS[i] end
  for i = next_value + 1, next_value + VALUE_COUNTS[name] do option[#option + 1] = ARGV[i] end
  if name == 'rate' then
    options.rates = options.rates or {}
    table.insert(options.rates, option)
  elseif name ~= 'wait' then
    has_rates_only = false
  end
  options[name] = option
  next_key, next_value = next_key + KEY_COUNTS[name], next_value + 1 + VALUE_COUNTS[name]
end
