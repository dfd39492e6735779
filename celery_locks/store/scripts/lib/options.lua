-- Part of acquire: the options of a call, by name; each is a list of its keys and then its values.

local KEY_COUNTS = {wait = 0, ended = 1, release = 2, replace = 2, supersede = 1, once = 1}
local VALUE_COUNTS = {wait = 1, ended = 0, release = 1, replace = 1, supersede = 1, once = 2}
local options, next_key, next_value = {}, 9, 3 -- after the keys and values that every call has
while ARGV[next_value] do
  local name, option = ARGV[next_value], {}
  for i = next_key, next_key + KEY_COUNTS[name] - 1 do option[#option + 1] = KEYS[i] end
  for i = next_value + 1, next_value + VALUE_COUNTS[name] do option[#option + 1] = ARGV[i] end
  options[name] = option
  next_key, next_value = next_key + KEY_COUNTS[name], next_value + 1 + VALUE_COUNTS[name]
end
